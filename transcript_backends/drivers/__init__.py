"""One small driver per kind of object store; `driver` holds the contract."""
