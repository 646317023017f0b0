"""Balancers: from one loss per reward to one gradient."""
