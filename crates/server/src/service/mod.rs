//! One file for each of etcd's services.
