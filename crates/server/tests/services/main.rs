//! etcd's services on members in this process, asked by generated clients over loopback.

mod keys;
mod leases;
mod maintenance;
mod members;
mod refusals;
mod support;
mod watches;
