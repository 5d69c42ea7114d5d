"""Actor scalers decide how many actors a round gets (paper: Nitro §5.3). One file per scaler, with its settings.

`runtime.registry` lists them; docs/design/add-a-part.md explains how to add one.
"""
