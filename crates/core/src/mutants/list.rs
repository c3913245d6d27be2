//! Every mutant: what is wrong, which row of the catalogue it stands for, and who is
//! expected to notice. One list, in blocks by the file that holds the rule.

/// A way of looking for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Means {
    /// The stories of the core.
    Stories,
    /// A search through every state of a small cluster.
    Model,
    /// Random runs.
    Explore,
    /// Crashes of the log and the snapshots on disk.
    Disks,
}

macro_rules! mutants {
    ($(#[doc = $wrong:literal] $name:ident: $ids:literal, $means:ident $checker:literal;)*) => {
        /// One wrong version of one rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            $(#[doc = $wrong] $name,)*
        }

        impl Mutant {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// What is wrong, in words.
            pub fn wrong(self) -> &'static str {
                match self { $(Self::$name => $wrong,)* }.trim()
            }

            /// The rows of the catalogue that it stands for, with spaces between; empty
            /// for a rule that has none.
            pub fn ids(self) -> &'static str {
                match self { $(Self::$name => $ids,)* }
            }

            /// By which means it is expected to be noticed.
            pub fn means(self) -> Means {
                match self { $(Self::$name => Means::$means,)* }
            }

            /// Who is expected to notice: the id of an invariant, `claim` for what a
            /// story says must be so, `own` for what a member checks of itself, `assert`
            /// for a panic of the core.
            pub fn checker(self) -> &'static str {
                match self { $(Self::$name => $checker,)* }
            }
        }
    };
}

impl Mutant {
    /// `vote-for-older-log`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|mutant| mutant.name() == name)
    }
}

mutants! {
    // election.rs, raft.rs: who may stand
    /// A member that never got to the entry that added it stands for election.
    CampaignBeforeJoining: "member.M9", Stories "claim";
    /// On apply, a joiner stands once it holds the entry that added it, committed or not.
    JoinedByLog: "member.M9", Stories "claim";
    /// A member whose snapshot is not on disk yet stands for election.
    CampaignWhileInstalling: "", Stories "claim";
    /// A member stands with a committed membership that it has not applied.
    CampaignUnapplied: "mut.29 S13 T7", Stories "I4";
    /// The same, when the leader asks it to take over.
    TransferUnapplied: "mut.29 S14", Stories "claim";
    /// A member stands for election while a leader counts on it with a lease.
    CampaignAgainstLease: "S46", Stories "claim";
    /// A member with another disk than the membership names stands for election.
    WipedDiskStands: "S33 T8", Stories "claim";
    /// Anybody stands for election after a timeout, also a learner.
    LearnerStands: "mut.26", Stories "claim";
    /// Who refused a vote for its newer log alone gains no right to stand.
    NewerLogMayNotStand: "mut.27 S08 T4", Stories "claim";
    /// The right to stand is not ended by hearing a leader.
    RightToStandStays: "", Stories "claim";
    /// Whoever won a pre-vote asks for votes, whatever bars a campaign by then.
    PreVoteWonSkipsTheDoor: "", Stories "claim";

    /// A member of low priority stands as soon as any other.
    PriorityHasNoEffect: "", Stories "claim";
    /// A member of low priority never stands by itself.
    LowPriorityNeverStands: "", Stories "claim";

    /// A leader whose connection broke is waited for as long as any other.
    HintIsNotTaken: "", Stories "claim";
    /// Who hears its leader again stays in a hurry.
    HurryOutlivesItsReason: "", Stories "claim";
    /// A broken connection deposes a leader, although nobody asks first.
    HintNeedsNoPreVote: "", Stories "claim";
    /// A broken connection is believed although the leader may hold a lease.
    HintBreaksLease: "", Stories "claim";

    // election.rs, raft.rs: votes
    /// A vote is granted to a log that is older than the voter's.
    VoteForOlderLog: "mut.13", Stories "I4";
    /// Logs are compared by length alone.
    VoteByLength: "mut.14", Stories "claim";
    /// A member votes for two candidates in one term.
    VoteTwice: "", Stories "I1";
    /// A member that follows a leader votes for another candidate of its term.
    VoteBesideLeader: "", Stories "claim";
    /// A learner refuses its vote when it is asked.
    LearnerRefusesVote: "mut.25 S28", Stories "claim";
    /// The vote of an older term is kept in a newer one.
    VoteKeptInNewTerm: "", Stories "claim";
    /// Votes are asked for before the disk knows the term and the log.
    VoteAskedBeforeSave: "", Stories "I4";
    /// A vote for oneself that was saved too late counts in a later term.
    OldOwnVoteCounts: "", Stories "I1";
    /// The last answer of a voter counts, not the first.
    LastAnswerCounts: "", Stories "claim";
    /// Answers to an election of an older term count.
    OldVoteCounts: "", Stories "claim";
    /// A new leader appends no entry of its own.
    TermOpensWithoutEntry: "", Stories "own";

    // election.rs, raft.rs: what votes tell
    /// Vote and pre-vote requests tell no committed membership.
    VoteTellsNothing: "mut.28 S01 S02", Stories "claim";
    /// A granted vote or pre-vote tells no committed membership.
    GrantTellsNothing: "mut.28", Stories "claim";
    /// A refused vote or pre-vote tells no committed membership.
    RefusalTellsNothing: "mut.28 S03 S04", Stories "claim";
    /// Nobody learns from what votes tell.
    TaughtNothing: "mut.28 S01 S02 S03 S04", Stories "claim";
    /// A member takes for committed what it is told of, though it holds another entry.
    TaughtWithoutTheEntry: "", Stories "assert";
    /// A candidate that learns of a newer membership goes on counting by the old one.
    TaughtCandidateGoesOn: "", Stories "claim";
    /// A leader learns from votes as well.
    LeaderIsTaught: "", Stories "claim";

    // raft.rs: terms, leaders and leases
    /// A pre-vote is granted although a leader was heard just now.
    PreVoteGrantedInLease: "mut.31 S27", Stories "claim";
    /// Whoever has just heard of a leader votes for others all the same.
    LeaderAliveIsForgotten: "mut.31 S27", Stories "claim";
    /// Being asked for a pre-vote raises the term.
    PreVoteRaisesTerm: "mut.31", Stories "claim";
    /// Who asks for votes that it cannot win makes others wait anew.
    HopelessCandidateDelays: "", Stories "claim";
    /// The newer term in a refused pre-vote is not taken over.
    PreVoteRefusalIsIgnored: "mut.31", Stories "claim";
    /// A pre-vote of an older term is met with silence.
    OldPreVoteIsNotAnswered: "mut.31", Stories "claim";
    /// A candidate of an older term is met with silence.
    OldVoteIsNotAnswered: "", Stories "claim";
    /// Who cannot win campaigns on beside who can.
    NobodyGivesWay: "", Stories "claim";
    /// A leader of an older term is met with silence.
    OldLeaderIsNotTold: "", Stories "claim";
    /// An append of an older term is taken.
    OldAppendIsTaken: "", Stories "claim";
    /// An acknowledgement of an older term counts.
    OldAcknowledgementCounts: "", Stories "I10";
    /// A heartbeat reply of an older term confirms a read.
    OldHeartbeatReplyCounts: "mut.34 S45", Stories "claim";
    /// A call to take over from an older term is obeyed.
    OldTimeoutNowIsObeyed: "S36", Stories "claim";
    /// A second leader of the same term is followed.
    SecondLeaderIsHeard: "", Stories "claim";
    /// A candidate stays one when a leader of its term speaks.
    CandidateHearsNoLeader: "", Stories "own";
    /// The vote that a leader asked its heir to collect is not marked as such.
    ForcedVoteIsNotMarked: "", Stories "claim";
    /// A leader's lease does not bind who has taken a newer term.
    LeaseDoesNotBind: "S46", Stories "claim";
    /// A member that starts binds itself to no lease.
    StartForgetsLease: "S46", Stories "claim";

    // raft.rs, boot, membership/history.rs: which membership counts
    /// On apply, a membership counts as soon as it is in the log.
    CountsBeforeItIsApplied: "", Stories "claim";
    /// On append, a membership counts once it is applied.
    CountsOnlyWhenApplied: "", Stories "claim";
    /// On append, a member starts with the newest committed membership.
    StartTakesCommitted: "mut.19 S21", Stories "own";
    /// On apply, a membership in the log does not prove the one before committed.
    StartProvesNoCommit: "T2", Stories "claim";
    /// Cutting the log leaves the memberships of what was cut.
    CutRestoresNothing: "mut.18 S22", Stories "claim";
    /// Cutting the log takes back one membership, also where two were cut.
    CutRestoresOneLevel: "mut.18 S22", Stories "claim";

    // saves.rs, log: what waits for the disk
    /// The term is saved without the vote.
    VoteNotSaved: "mut.9 S37", Stories "I12";
    /// A granted vote leaves before it is on disk.
    VoteReplyBeforeSave: "mut.10 S37", Stories "I12";
    /// A candidate counts its own vote before it is on disk.
    OwnVoteBeforeSave: "mut.10", Stories "I1";
    /// An acknowledgement leaves before the entries are on disk.
    AppendReplyBeforeSave: "mut.12", Stories "I12";
    /// A leader counts its own copy before it is on disk.
    OwnAppendBeforeSave: "S41", Stories "own";
    /// A new leader counts what it holds before it is on disk.
    OwnLogBeforeSave: "S41", Stories "own";
    /// A late completion acknowledges what was written since in place of a cut tail.
    LateSaveCountsAfterCut: "mut.38 S40", Stories "claim";
    /// What replaces a cut tail is not saved.
    CutIsNotSavedAgain: "", Stories "I2";
    /// What replaces a cut tail is taken for saved.
    CutStaysSaved: "", Stories "own";
    /// A commit index that covers a membership is not saved by itself.
    MembershipCommitNotSaved: "T5", Stories "claim";
    /// A commit index that covers a membership is written but not synced.
    MembershipCommitNotSynced: "T5", Stories "I13";
    /// Replies tell a commit index that is not on disk.
    RepliesTellUnsavedCommit: "T5", Stories "I13";
    /// A leader counts its own knowledge of a commit before it is on disk.
    OwnCommitBeforeSave: "T5", Stories "I13";

    // commit.rs, role.rs, membership/quorum.rs: counting
    /// An entry of an older term is committed by counting.
    CommitOldTermByCount: "mut.2 S38", Stories "I4";
    /// A learner's acknowledgement counts towards a quorum of voters.
    LearnerIsCounted: "mut.1", Stories "I10";
    /// A quorum is a majority of voters and learners together.
    LearnersShareTheQuorum: "mut.1", Stories "I10";
    /// A leader without a vote counts its own copy.
    LeaverCountsItself: "mut.23", Stories "I10";
    /// A joint needs a majority of all its voters together.
    JointCountsTheUnion: "mut.7 S15", Stories "I10";
    /// A joint commits by its incoming majority alone.
    JointCommitsByIncoming: "mut.8", Stories "I10";
    /// A joint elects by its outgoing majority alone.
    JointElectsByOutgoing: "mut.8", Stories "claim";
    /// A joint confirms reads by its incoming majority alone.
    JointReadsByIncoming: "mut.8", Stories "claim";
    /// A leader of a joint looks for its incoming majority alone.
    JointChecksIncoming: "mut.8", Stories "claim";
    /// One of two voters is a quorum.
    OneOfTwoIsEnough: "S17", Stories "I10";
    /// Half of an even number of voters, four or more, is a quorum.
    HalfIsEnough: "S17", Stories "I10";
    /// The commit index falls when it is told a lower one.
    CommitFalls: "", Stories "own";
    /// Entries are applied before they are on the member's own disk.
    ApplyBeforeSave: "", Stories "own";
    /// Entries are applied before the snapshot that comes before them is installed.
    ApplyWhileInstalling: "S42", Stories "claim";

    // replication.rs, progress.rs: appends
    /// The entry before an append is not compared.
    PrevNotCompared: "mut.15", Stories "I2";
    /// Entries that contradict the leader's are kept.
    ConflictIsKept: "mut.16", Stories "I2";
    /// Every append cuts what follows it, also without a contradiction.
    EveryAppendCuts: "mut.17", Stories "I10";
    /// An append that contradicts what is committed is acknowledged.
    ContradictionIsAcknowledged: "T1", Stories "claim";
    /// A committed entry is cut when an append contradicts it.
    CommittedEntryIsCut: "T1", Stories "assert";
    /// The commit index in an append counts beyond what that append proves.
    CommitBeyondWhatMatches: "mut.36", Stories "claim";
    /// A heartbeat tells a commit index beyond what the member is known to hold.
    HeartbeatTellsAll: "mut.36", Stories "claim";
    /// A heartbeat's commit index beyond the log is taken.
    HeartbeatBeyondLogIsTaken: "mut.36", Stories "assert";
    /// A member acknowledges its whole log, not what the append proves.
    AcknowledgesItsWholeLog: "", Stories "I10";
    /// An acknowledgement beyond the leader's log is taken.
    MatchBeyondLogIsTaken: "", Stories "own";
    /// After a contradiction the leader goes back one entry at a time.
    ConflictStepsByOne: "", Stories "claim";
    /// A late acknowledgement takes a newer one back.
    MatchFalls: "", Stories "claim";
    /// A refusal takes the leader back below what was acknowledged.
    ProbeBelowMatch: "", Stories "own";
    /// A probe that is answered without news goes on probing.
    ProbeWithoutNewsGoesOn: "", Stories "claim";
    /// A heartbeat reply does not free a member whose probe was lost.
    HeartbeatFreesNoProbe: "", Stories "claim";
    /// A member that cannot be reached is sent entries ahead of its answers.
    UnreachableIsIgnored: "", Stories "claim";
    /// The window of appends in flight has no end.
    WindowHasNoEnd: "", Stories "claim";
    /// A leader without a quorum goes on leading.
    QuorumNotChecked: "mut.32 S30", Stories "claim";
    /// A member that has just been added counts as silent.
    NewcomerIsGivenNoTime: "", Stories "claim";

    // reads.rs
    /// A read is served without asking a quorum.
    ReadUnconfirmed: "mut.33", Stories "claim";
    /// A read is served before an entry of the leader's own term is committed.
    ReadBeforeOwnCommit: "mut.34 S44", Stories "claim";
    /// A late answer to an earlier round confirms this one.
    LateReplyConfirms: "mut.34 S45", Stories "claim";
    /// A read joins a round that began before it.
    ReadJoinsTheOpenRound: "S45", Stories "claim";
    /// A leader without a vote serves reads alone when one voter is left.
    LeaverReadsAlone: "", Stories "claim";
    /// A lease runs from the answer to a heartbeat, not from its sending.
    LeaseFromTheAnswer: "mut.35 S46", Stories "claim";
    /// A lease allows for no drift of clocks.
    LeaseWithoutDrift: "mut.35 S46", Stories "claim";
    /// A lease holds on although somebody was told to take over.
    LeaseKeptInTransfer: "S46", Stories "claim";
    /// Reads that wait are forgotten when their leader steps down.
    ReadsForgotten: "", Stories "claim";

    // snapshot.rs, membership/mod.rs
    /// A snapshot holds the newest membership in the log, committed or not.
    SnapshotTakesNewest: "mut.22 S23", Stories "claim";
    /// A snapshot loses the learners.
    SnapshotDropsLearners: "mut.20", Stories "claim";
    /// A snapshot loses the learners to be.
    SnapshotDropsLearnersNext: "mut.20 S25", Stories "claim";
    /// A snapshot loses the outgoing majorities.
    SnapshotDropsOutgoing: "mut.20 S25", Stories "claim";
    /// A snapshot loses that the joint is left by itself.
    SnapshotDropsAutoLeave: "mut.20", Stories "claim";
    /// A snapshot loses the goal.
    SnapshotDropsGoal: "mut.20", Stories "claim";
    /// A snapshot loses which disk is whose.
    SnapshotDropsDisks: "mut.20", Stories "claim";
    /// A snapshot loses the ids that were removed.
    SnapshotDropsRemoved: "mut.20", Stories "claim";
    /// A snapshot loses the entry that brought its membership.
    SnapshotDropsSince: "mut.20", Stories "claim";
    /// Taking a snapshot leaves the memberships of the log it replaces.
    SnapshotKeepsStaleMemberships: "mut.21", Stories "own";
    /// A voter that is on its way out of a joint refuses a snapshot.
    LeaverRefusesSnapshot: "S25", Stories "claim";
    /// A snapshot from before a member was added is refused by it.
    StrangerRefusesSnapshot: "S26", Stories "claim";
    /// A snapshot that is behind the commit index replaces the log.
    OldSnapshotIsTaken: "", Stories "own";
    /// A snapshot of what is in the log already replaces the log.
    SnapshotCutsWhatIsHeld: "S42", Stories "claim";
    /// A lost snapshot is taken for one that arrived.
    LostSnapshotIsTakenForSent: "", Stories "claim";
    /// A member stays in the snapshot state after it has caught up.
    SnapshotNeverEnds: "S43", Stories "claim";
    /// A snapshot beyond what is applied is taken.
    SnapshotBeyondApplied: "S43", Stories "own";
    /// The log is trimmed under members that still read it.
    TrimWaitsForNobody: "S43", Stories "claim";
    /// The log is kept for members that have been silent for long.
    TrimWaitsForTheSilent: "", Stories "claim";
    /// The log is trimmed beyond the newest snapshot.
    TrimBeyondSnapshot: "S43", Stories "own";

    // validate.rs: what comes from outside
    /// A message to somebody else is read.
    OthersLettersAreRead: "", Stories "claim";
    /// Numbers beyond all bounds are taken.
    NumbersHaveNoEnd: "", Stories "claim";
    /// Entries with a gap between them are taken.
    GapIsTaken: "", Stories "own";
    /// Entries whose terms fall are taken.
    FallingTermsAreTaken: "", Stories "own";
    /// Entries of a later term than their leader's are taken.
    TermAboveMessageIsTaken: "", Stories "claim";
    /// An impossible membership is taken from outside.
    ImpossibleMembershipIsTaken: "", Stories "claim";
    /// A membership of a cluster with the other activation is taken.
    OtherActivationIsTaken: "", Stories "claim";
    /// Promises of a wiped or swapped disk count.
    WipedDiskPromises: "S33 T8", Stories "I4";
    /// Promises of a former member of the same id count.
    FormerMemberPromises: "S33", Stories "claim";
    /// A member that was added after all that the receiver knows is refused a vote.
    NewerMemberIsRefused: "", Stories "claim";
    /// Who is taken for somebody else is not told.
    NobodyIsDisowned: "", Stories "claim";
    /// Who was never told which entry added it is not told that it is somebody else.
    NeverJoinedIsNotTold: "S33", Stories "claim";
    /// Whom others know by the same id and another entry takes itself for that one.
    EntryIsNotCompared: "S33", Stories "claim";
    /// What a swapped disk acknowledged counts for the new one.
    SwappedDiskKeepsProgress: "S33", Stories "claim";

    // changes.rs, role.rs: proposals and changes
    /// A leader takes proposals while it hands over.
    ProposalsDuringTransfer: "S35", Stories "claim";
    /// A leader that is no member any more takes proposals.
    RemovedLeaderTakesProposals: "", Stories "claim";
    /// Commands that wait for a quorum have no limit.
    WaitingBytesHaveNoEnd: "", Stories "claim";
    /// The limit on what waits for a quorum refuses even empty entries.
    EmptyEntryIsRefused: "", Stories "claim";
    /// A second change is taken while one is in flight.
    SecondChangeAtOnce: "mut.4 S11", Stories "claim";
    /// A new leader takes a change although an inherited one may be in flight.
    InheritedChangeForgotten: "mut.3 S11", Stories "claim";
    /// On append, a leader takes a change before an entry of its own is committed.
    ChangeBeforeOwnCommit: "mut.3 S10 T6 member.M6", Stories "claim";
    /// A change is taken although another came before it than its asker expects.
    ExpectationIsIgnored: "S34", Stories "claim";
    /// A change by hand is taken while a goal is pursued.
    GoalIsInterrupted: "", Stories "claim";
    /// A voter is removed without being a learner first.
    VoterRemovedDirectly: "S07", Stories "claim";
    /// A joint whose exit removes a voter is entered.
    ExitRemovesVoters: "S07", Stories "claim";
    /// A change is taken that too few live members could carry.
    ChangeIsNotCarried: "S31", Stories "claim";
    /// A change is taken after which one zone can block.
    ZoneMayBlock: "", Stories "claim";
    /// A member that does not answer is counted on.
    SilentMemberIsAble: "S31", Stories "claim";
    /// A member that is far behind is counted on.
    LaggingMemberIsAble: "S31", Stories "claim";
    /// A removed id is added again.
    RemovedIdReturns: "S33", Stories "claim";
    /// Who is removed is not remembered.
    RemovedIsForgotten: "S33", Stories "claim";
    /// The disks of voters are not named when they are added.
    VotersAreNotNamed: "S33", Stories "claim";
    /// The disks of first members are never named.
    DisksAreNotNamed: "S33 T8", Stories "claim";

    // replay.rs, changes.rs: requests that are passed on
    /// A request that was passed on and arrives twice is taken twice.
    CopyIsTaken: "mut.41", Stories "claim";
    /// A request that is too old to be remembered is taken for a new one.
    OldCopyIsTaken: "mut.41", Stories "claim";
    /// After a start, requests of the term that it may have led are taken.
    StartForgetsCopies: "mut.41", Stories "claim";

    // changes.rs, membership/change.rs: steps and joints
    /// Two voters change in one step.
    ManyVotersInOneStep: "mut.5", Stories "assert";
    /// Any list of majorities may follow any other.
    AnyStepIsSafe: "mut.5 T3", Stories "claim";
    /// Unions of majorities are compared, not majorities.
    UnionsAreCompared: "T3", Stories "claim";
    /// The last voter may be removed.
    LastVoterMayGo: "", Stories "claim";
    /// A member may be voter and learner at a time.
    VoterMayBeLearner: "", Stories "I2";
    /// A voter demoted in a joint is made a learner while it still votes.
    DemotedAtOnceInJoint: "", Stories "claim";
    /// Leaving a joint removes those who were to become learners.
    LeavingForgetsLearners: "S07", Stories "claim";
    /// Going back from a joint removes those who lose their vote.
    GoingBackForgetsLearners: "S07", Stories "claim";
    /// A joint is left before it is committed.
    JointIsLeftTooEarly: "mut.6 S20", Stories "claim";
    /// A joint is never left by itself.
    JointIsNotLeft: "S19", Stories "claim";
    /// A joint that was to stay is left by itself.
    ExplicitJointIsLeft: "", Stories "claim";
    /// Only the leader that entered a joint leaves it.
    OnlyWhoEnteredLeaves: "S19", Stories "claim";
    /// A smaller quorum commits nothing before the next acknowledgement.
    SmallerQuorumCommitsNothing: "", Stories "claim";
    /// A smaller quorum confirms no read before the next heartbeat reply.
    SmallerQuorumConfirmsNothing: "", Stories "claim";
    /// A new member is sent nothing before the next heartbeat.
    NewcomerWaitsForHeartbeat: "", Stories "claim";
    /// Who learned by a vote that it counts waits for its timeout all the same.
    TaughtWaitsForTimeout: "", Stories "claim";

    // transfer.rs
    /// Leadership is handed to a learner.
    TransferToLearner: "mut.30 S36", Stories "claim";
    /// The heir is told to take over before it has caught up.
    TransferTooEarly: "S35", Stories "claim";
    /// A transfer that comes to nothing is never given up.
    TransferNeverEnds: "mut.30 S35", Stories "claim";
    /// A transfer goes on when its target is no longer a voter.
    TransferOutlivesItsTarget: "mut.30 S36", Stories "claim";
    /// A transfer that is called off leaves the joint to others.
    CalledOffTransferLeavesNothing: "", Stories "claim";
    /// A transfer that took too long leaves the joint to others.
    LateTransferLeavesNothing: "", Stories "claim";
    /// A call to take over is obeyed from whoever sends it.
    AnybodyHandsOver: "S36", Stories "claim";

    // settled.rs
    /// A change is reported as settled once it is committed.
    CommittedIsSettled: "S05 T5", Stories "I13";
    /// A change is reported as settled before the leader committed an entry of its own.
    SettledBeforeOwnCommit: "", Stories "claim";
    /// A leader without a vote goes before its successors know.
    LeaverGoesAtOnce: "S06", Stories "claim";
    /// A leader that was removed leads on.
    RemovedLeaderStays: "mut.24 S18", Stories "claim";
    /// A leaving leader hands over to one that does not know the membership.
    HeirNeedNotKnow: "S06", Stories "claim";
    /// A leaving leader hands over to one that is leaving as well.
    HeirMayBeLeaving: "", Stories "claim";
    /// A leaving leader does not tell what is committed.
    LeaverTellsNobody: "", Stories "claim";
    /// A leaving leader hands over to nobody.
    LeaverNamesNoHeir: "S18", Stories "claim";

    /// A member believes that a change is settled before it is that far itself.
    SettledIsBelievedAhead: "", Stories "claim";
    /// The end of a goal is told before it is settled.
    GoalEndIsToldEarly: "", Explore "I13";
    /// The end of a goal is told again and again.
    GoalEndIsToldAgain: "", Explore "R2";

    // goals.rs, membership/goal.rs
    /// A goal is pursued only by the leader that took it.
    GoalDiesWithItsLeader: "", Stories "claim";
    /// Votes move towards a goal although too few could carry it.
    GoalMovesVotesUncarried: "S31", Stories "claim";
    /// New voters get their votes before they have caught up.
    GoalWaitsForNobody: "S31", Stories "claim";
    /// A leader that is to go does not hand over first.
    GoalLeaderHandsNothingOver: "", Stories "claim";
    /// Leavers are removed before the new votes are settled.
    LeaversGoUnsettled: "", Stories "claim";
    /// One heir after the other is asked without a pause.
    HandOverWithoutPause: "", Stories "claim";
    /// The same heir is asked again and again.
    SameHeirAgain: "", Stories "claim";
    /// A cancelled joint is left forwards.
    CancelledJointGoesOn: "T9", Stories "claim";
    /// A cancelled joint first takes the new aim, inside the joint, and is left then.
    CancelStaysJoint: "T9", Stories "claim";
    /// A goal that was called off is told as one that came to its end.
    CancelIsTakenForTheEnd: "", Stories "claim";
    /// Those who have caught up wait for ever for one that never comes.
    GoalWaitsForEver: "S31", Stories "claim";
    /// A leader that was just elected refuses to cancel: it has heard of nobody.
    CancelWaitsToBeCarried: "", Stories "claim";
    /// Cancelling twice goes on again.
    CancelCancelsItself: "", Stories "claim";

    // crates/node
    /// A command that was offered twice runs twice.
    RepeatedCommandRuns: "mut.41", Explore "R2";
    /// A snapshot does not say which requests have run.
    SnapshotForgetsOrigins: "mut.41", Explore "R2";
    /// Promises leave before the save that holds them is durable.
    SendBeforeSaved: "mut.12", Explore "I12";
    /// A read is answered before the machine has what it must see.
    ReadBeforeApplied: "", Explore "R1";
    /// A refusal of the newest offer is taken for one of all offers.
    RefusedAfterManyOffers: "", Explore "R2";
    /// A membership change is offered again to the next leader.
    ChangeOfferedAgain: "", Explore "R2";
    /// Requests that a snapshot passed by are not answered.
    PassedIsNotAnswered: "", Explore "L5";
    /// Entries that have run are run again.
    AppliedEntryRunsAgain: "mut.39", Explore "assert";
    /// A request from before a restart of its member runs again.
    EarlierRunIsForgotten: "mut.41", Explore "R2";
    /// A member with an empty disk that nobody added takes itself for a first member.
    NeverJoinedIsFirst: "S33", Explore "I10";

    // crates/storage
    /// Term and vote are written one after the other.
    TermAndVoteApart: "mut.11", Disks "D1";
    /// A sync is reported and not done.
    SyncSkipped: "mut.12", Disks "D5";
    /// Half of a save's entries are written, all are reported.
    BatchPartlyWritten: "mut.37", Disks "D1";
    /// A sync that failed is tried again and believed.
    SyncRetried: "mut.40", Disks "D1";
    /// Damage in the middle of the log is taken for its end.
    DamageTakenForEnd: "mut.40", Disks "D4";
    /// A new segment is used before its name is durable.
    SegmentNotInDirectory: "S47", Disks "D5";
    /// A snapshot gets its name before its contents are durable.
    SnapshotRenamedUnsynced: "S47", Disks "D5";
    /// A snapshot is installed before its name is durable.
    InstallBeforeSnapshot: "", Disks "D5";
    /// The log goes before the snapshot that covers it is durable.
    TrimBeforeSnapshot: "", Disks "D5";
    /// What a crash left behind a torn write stays, and is written up to.
    TornTailKept: "S47", Disks "D1";
    /// An installed snapshot goes before the machine was made of it.
    WantedSnapshotDropped: "", Disks "D1";
}
