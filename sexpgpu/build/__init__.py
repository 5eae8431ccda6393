"""A plan to an artifact: the one room that joins the language, the lowering, the schedules and the artifact."""
