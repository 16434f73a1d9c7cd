"""What is carried for others: forwarding (R43), and mirrored routes (R51 to R54)."""
