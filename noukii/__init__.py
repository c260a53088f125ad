"""noukii: a folder of raw images in, a trained Stable Diffusion 1.5 LoRA out."""

__version__ = "0.1.0"
