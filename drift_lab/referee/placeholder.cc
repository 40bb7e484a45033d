// Placeholder until the folder's first source is written.
