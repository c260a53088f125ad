"""Images, captions and folders as the trainer will see them. No torch in this room."""
