"""What all packages of the runner use: errors, durable files, JSON, safetensors, the clock."""
