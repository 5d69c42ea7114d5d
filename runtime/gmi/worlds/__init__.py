"""Worlds: many environments that are one batch of tensors on one device."""
