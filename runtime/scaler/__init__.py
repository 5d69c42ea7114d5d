"""Actor scalers: how many actors a round gets (paper: Nitro §5.3). One file per scaler, its settings beside it.

`runtime.registry` knows which there are; docs/design/add-a-part.md tells how to add one.
"""
