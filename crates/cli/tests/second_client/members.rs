//! Members: list, add, update, remove, refusals.

use etcd_client::{Client, MemberAddOptions};
use tonic::Code;

use crate::support::free_urls;
use crate::{assert_refused, with_cluster};

#[test]
fn members_are_added_updated_and_removed() {
    with_cluster("members", |mut client, endpoints| async move {
        let list = client.member_list().await.unwrap();
        assert_eq!(list.members().len(), 3);
        assert!(list.members().iter().all(|member| !member.is_learner()));
        let urls: Vec<_> = list.members().iter().map(|one| one.client_urls()[0].clone()).collect();
        endpoints.iter().for_each(|endpoint| assert!(urls.contains(endpoint), "{urls:?}"));

        let [peer, elsewhere] = free_urls();
        let learner = MemberAddOptions::new().with_is_learner();
        let added = client.member_add([&peer], Some(learner.clone())).await.unwrap();
        let member = added.member().unwrap();
        assert!(member.is_learner() && member.name().is_empty());
        assert_eq!(member.peer_urls()[0], peer);
        assert_eq!(added.member_list().len(), 4);
        let exists = "etcdserver: Peer URLs already exists";
        let again = client.member_add([&peer], Some(learner)).await;
        assert_refused(again, Code::FailedPrecondition, exists);

        let early = client.member_promote(member.id()).await;
        let not_ready =
            "etcdserver: can only promote a learner member which is in sync with leader";
        assert_refused(early, Code::FailedPrecondition, not_ready);
        client.member_update(member.id(), [elsewhere.clone()]).await.unwrap();
        let list = client.member_list().await.unwrap();
        let shown = list.members().iter().find(|one| one.id() == member.id()).unwrap();
        assert_eq!(shown.peer_urls(), [elsewhere]);
        let removed = client.member_remove(member.id()).await.unwrap();
        assert_eq!(removed.members().len(), 3);
        let voter = removed.members()[0].id();
        invalid_requests(&mut client, voter).await;
    });
}

async fn invalid_requests(client: &mut Client, voter: u64) {
    let missing = "etcdserver: member not found";
    assert_refused(client.member_remove(77).await, Code::NotFound, missing);
    assert_refused(client.member_promote(77).await, Code::NotFound, missing);
    let url = ["http://127.0.0.1:1".to_owned()];
    assert_refused(client.member_update(77, url).await, Code::NotFound, missing);
    let voter = client.member_promote(voter).await;
    let not_learner = "etcdserver: can only promote a learner member";
    assert_refused(voter, Code::FailedPrecondition, not_learner);
    let bad = client.member_add(["nonsense"], None).await;
    let text = "etcdserver: given member URLs are invalid";
    assert_refused(bad, Code::InvalidArgument, text);
}
