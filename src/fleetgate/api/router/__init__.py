"""Routes as typed functions: their requests, their arguments, their answers and the document that describes them."""
