"""Values from outside of this process, such as files that people have changed: read with limits, in typed forms."""
