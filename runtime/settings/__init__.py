"""Building blocks of settings, and the settings shared by all kinds of a part; below the configuration."""
