"""What run_training.sh does: find the data sets, plan, stage, launch a trainer, gather the LoRA."""
