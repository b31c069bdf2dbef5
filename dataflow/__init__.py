"""Everything that launches on Google Cloud: container, Flex Template, launcher, offline validation."""
