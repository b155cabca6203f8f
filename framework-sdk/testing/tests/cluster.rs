//! The broker behind a real port, with a directory: what only sockets and disks can show.

use std::time::Duration;

use mete_sdk::{Claim, Connected, Framework, Offers, Result, Session, TaskSpec, TaskUpdate};
use mete_testing::{Cluster, wait};
use tokio::sync::watch;

const WITHIN: Duration = Duration::from_secs(60);

/// Runs three tasks that go on until they are stopped, and tells how many run.
struct Three {
    running: watch::Sender<usize>,
}

impl Framework for Three {
    async fn connected(&mut self, s: &Session, _: Connected) -> Result<()> {
        s.want("three", Claim::cpus(1).count(3)).await
    }

    async fn offers(&mut self, _: &Session, offers: &mut Offers) -> Result<()> {
        while let Some(slot) = offers.take("three") {
            offers.launch(slot, TaskSpec::command("three", ["sleep", "1000"]));
        }
        Ok(())
    }

    async fn update(&mut self, s: &Session, _: TaskUpdate) -> Result<()> {
        let runs = s.snapshot().runs;
        let running = runs
            .iter()
            .filter(|run| run.phase == mete_sdk::TaskPhase::Running);
        self.running.send_replace(running.count());
        Ok(())
    }
}

#[tokio::test]
async fn tasks_and_their_framework_outlive_a_restart_of_the_master_on_its_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::start(directory.path()).await.expect("a master");
    cluster.add_role("dev").await.expect("a role");
    cluster
        .add_node("n1", |node| node.tasks_run(Duration::ZERO, 0))
        .await;
    let (running, seen) = watch::channel(0);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopping = async move { drop(stopped.await) };
    let (session, end) = cluster
        .runner("three")
        .spawn(Three { running }, stopping)
        .expect("a good name");
    wait::until("three tasks to run", WITHIN, || *seen.borrow() == 3).await;
    let id = session.framework_id();

    cluster.stop_master().await.expect("a graceful end");
    let mut connection = session.connection();
    let lost =
        |connection: &mete_sdk::Connection| matches!(connection, mete_sdk::Connection::Connecting);
    drop(
        connection
            .wait_for(lost)
            .await
            .expect("the session goes on"),
    );
    cluster.start_master().await.expect("the same directory");
    session.ready().await.expect("the session stands again");

    assert_eq!(
        (session.framework_id(), session.incarnation()),
        (id, Some(1))
    );
    assert_eq!((session.live_tasks(), session.wanted()), (3, 0));
    stop.send(()).expect("it runs");
    end.await.expect("no panic").expect("a polite end");
    cluster.stop_master().await.expect("a graceful end");
}
