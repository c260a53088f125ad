"""Self-contained HTML pages made from what the other rooms wrote on disk."""
