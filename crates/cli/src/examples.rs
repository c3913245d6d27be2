//! The text below the options in a command's help and manual page.

pub(crate) const FIRST_STEPS: &str = "\
First steps:
  quorate demo               run three members and replace one of them under load
  quorate server --help      run a member of your own
  quorate status             check the health of a cluster
  quorate member replace -h  replace a member

Exit codes: 0 success, 1 the request was refused or failed, 2 invalid arguments, 3 the member of
this server was removed from its cluster, 130 interrupted.";

pub(crate) const ADD_EXAMPLES: &str = "\
Examples:
  quorate member add m4=http://10.0.0.4:2380
  quorate member add m5 --peer-urls http://10.0.0.5:2380 --learner";

pub(crate) const REPLACE_EXAMPLES: &str = "\
Example:
  quorate member replace m1 m4=http://10.0.0.4:2380";

pub(crate) const SET_EXAMPLES: &str = "\
Examples:
  quorate member set m1 m2 m3                        exactly these three voters
  quorate member set m1 m2 m4=http://10.0.0.4:2380   m4 is new
  quorate member set m1 m2 m3 --learners m4          m4 is a learner";

pub(crate) const PLAN_EXAMPLES: &str = "\
Example:
  quorate member plan m2 m3 m4=http://10.0.0.4:2380";

pub(crate) const RESTORE_EXAMPLES: &str = "\
Example, for the first of three members:
  quorate snapshot restore backup.db --name m1 --data-dir /var/lib/quorate-new \\
    --initial-cluster m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380 \\
    --initial-advertise-peer-urls http://10.0.0.1:2380 \\
    --bump-revision 1000000000 --mark-compacted";

pub(crate) const IMPORT_EXAMPLES: &str = "\
Example, for the first of three members:
  quorate import --data-dir /var/lib/etcd --name m1 --new-data-dir /var/lib/quorate \\
    --initial-cluster m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380 \\
    --initial-advertise-peer-urls http://10.0.0.1:2380";

pub(crate) const RECOVER_EXAMPLES: &str = "\
Examples:
  quorate recover --data-dir /var/lib/quorate
  quorate recover --data-dir /var/lib/quorate \\
    --members m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380";
