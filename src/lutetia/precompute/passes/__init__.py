"""What turns one stream graph into another: tables, fusing, minimising."""
