"""The experiment file: schema, loading, explanations."""
