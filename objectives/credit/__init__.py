"""Credit: pure functions from a scored rollout to an advantage."""
