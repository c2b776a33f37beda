"""Vectorizing map: functions of one sample, run on a batch by one call of each op."""
