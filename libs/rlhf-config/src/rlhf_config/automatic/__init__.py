"""Selection by the setting: what a selector's ``auto`` comes to, among the components that declare how they suit."""
