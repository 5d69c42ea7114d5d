"""What settings are made of, and what the settings of each kind of a part have in common; below the configuration."""
