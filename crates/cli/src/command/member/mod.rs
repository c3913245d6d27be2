//! `quorate member`: lists and changes the members of a cluster.
//!
//! `list`, `add`, `promote` and `remove` use etcd's calls and work with any server that has
//! them; the others use Quorate's membership service.

mod add;
mod change;
mod goal;
mod list;
mod watch;

pub(crate) use self::goal::replacement;

use crate::arguments::MemberCommand;
use crate::error::CliError;

pub(crate) async fn run(command: MemberCommand) -> Result<(), CliError> {
    match command {
        MemberCommand::List { client } => list::run(&client).await,
        MemberCommand::Add { member, peer_urls, learner, client } => {
            add::run(&client, &member, peer_urls, learner).await
        }
        MemberCommand::Promote { member, client } => change::promote(&client, &member).await,
        MemberCommand::Remove { member, client } => change::remove(&client, &member).await,
        MemberCommand::Replace { old, new, wait, client } => {
            goal::replace(&client, &wait, &old, &new).await
        }
        MemberCommand::Set { target, wait, client } => goal::set(&client, &wait, &target).await,
        MemberCommand::Plan { target, client } => goal::plan(&client, &target).await,
        MemberCommand::Cancel { wait, client } => goal::cancel(&client, &wait).await,
        MemberCommand::Watch { client } => watch::run(&client).await,
    }
}
