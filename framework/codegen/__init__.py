"""Files that follow the declarations: stubs, the page of operators."""
