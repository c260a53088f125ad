"""The built-in LoRA trainer: kohya's flags and file format on diffusers."""
