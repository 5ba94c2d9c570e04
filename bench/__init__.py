"""Measurements. Every figure is a ratio to a peer measured in the same run; nothing here is a test."""
