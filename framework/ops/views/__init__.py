"""Views: reshape, permute, expand, slice, as_strided."""
