"""The experiment file: schema, settings of all kinds, loading, explanations."""
