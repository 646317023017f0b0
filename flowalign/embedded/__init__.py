"""The world that ships with the package: prompts, drawings, judges and a tiny SD3-class model."""
