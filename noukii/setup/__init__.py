"""Prepares a machine: Python environments, models, upstream's trainer. The only room that uses a network."""
