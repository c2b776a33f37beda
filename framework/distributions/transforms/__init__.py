"""Transforms: functions with a known inverse and Jacobian."""
