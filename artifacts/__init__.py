"""The artifact and its runner. Imports none of the other packages and never tvm."""
