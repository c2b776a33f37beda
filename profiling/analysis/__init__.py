"""Analysis of a recording: tables, timelines, differences, saved tensors."""
