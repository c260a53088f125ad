"""Images in, captions and key concepts out."""
