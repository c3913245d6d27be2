//! `quorate member`: who belongs to the cluster, and changing it.
//!
//! `list`, `add`, `promote` and `remove` use etcd's own calls and work with any server that
//! has them; the others need Quorate's.

mod add;
mod goal;
mod list;
mod settle;
mod watch;

pub(crate) use self::goal::replacement;

use crate::arguments::MemberCommand;
use crate::failure::Failure;

pub(crate) async fn run(asked: MemberCommand) -> Result<(), Failure> {
    match asked {
        MemberCommand::List { client } => list::run(&client).await,
        MemberCommand::Add { member, peer_urls, learner, client } => {
            add::run(&client, &member, peer_urls, learner).await
        }
        MemberCommand::Promote { member, client } => settle::promote(&client, &member).await,
        MemberCommand::Remove { member, client } => settle::remove(&client, &member).await,
        MemberCommand::Replace { old, new, wait, client } => {
            goal::replace(&client, &wait, &old, &new).await
        }
        MemberCommand::Set { target, wait, client } => goal::set(&client, &wait, &target).await,
        MemberCommand::Plan { target, client } => goal::plan(&client, &target).await,
        MemberCommand::Cancel { wait, client } => goal::cancel(&client, &wait).await,
        MemberCommand::Watch { client } => watch::run(&client).await,
    }
}
