"""What users write and read: the resources of `inference-fleet.dev/v1alpha1` as pydantic models.

One module per resource (`model`, `accelerator`, `policy` and its parts), `conditions` and `reasons` for what status says,
`quantities` and `money` for the two kinds of figures written as strings, `resource` for reading whole objects, `crd` for the
CustomResourceDefinitions generated from all of this.
"""
