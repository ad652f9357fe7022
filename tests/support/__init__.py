"""What tests share: free ports, configurations, and checks that nothing was left behind."""
