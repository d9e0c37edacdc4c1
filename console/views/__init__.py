"""Faces of the console: function views, one module per noun. Each one: access, form, service, answer."""
