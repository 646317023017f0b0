"""Penalties: regularisers that add to any objective."""
