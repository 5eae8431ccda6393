"""What every room of the runner uses: errors, durable files, JSON, safetensors, the clock."""
