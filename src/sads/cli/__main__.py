from sads.cli.main import main

main()
