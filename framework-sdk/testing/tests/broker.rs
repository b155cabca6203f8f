//! The test broker itself, and the smallest framework through every fault script.

use std::time::Duration;

use mete_sdk::{
    Claim, Connected, Framework, Offers, Result, Session, TaskPool, TaskSpec, TaskUpdate, Wanted,
};
use mete_testing::conformance::{Script, conform_to};
use mete_testing::{Expect, TestBroker, conformance};

/// The framework of `framework-sdk/examples/hello.rs`, without its output.
#[derive(Debug)]
struct Hello;

impl Framework for Hello {
    async fn connected(&mut self, s: &Session, _: Connected) -> Result<()> {
        s.want("greetings", Claim::cpus(1).memory_mib(128).count(3))
            .await
    }

    async fn offers(&mut self, _: &Session, offers: &mut Offers) -> Result<()> {
        while let Some(slot) = offers.take("greetings") {
            offers.launch(slot, TaskSpec::command("hello", ["echo", "hi"]));
        }
        Ok(())
    }

    async fn update(&mut self, s: &Session, u: TaskUpdate) -> Result<()> {
        if u.phase.is_terminal() && s.live_tasks() == 0 && s.wanted() == 0 {
            s.teardown().await?;
        }
        Ok(())
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn hello_runs_its_three_tasks_and_ends_itself() {
    let broker = TestBroker::builder()
        .node("n1", |node| node.cpus(8).gpus(2, "a100"))
        .start()
        .await;
    let mut run = broker.run(Hello);
    run.ended(MINUTE).await.expect("a teardown of its own");
    assert_eq!(broker.tasks().finished(), 3);
    assert_eq!(broker.tasks().launched(), 3);
}

#[tokio::test(start_paused = true)]
async fn hello_survives_every_fault_script() {
    let expect = Expect::once(3).and_ends();
    conformance(|| Hello, expect).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_survives_every_fault_script() {
    let make = || {
        let pool = TaskPool::new();
        let web = TaskSpec::command("web", ["serve"]);
        let wanted = Wanted::new(4, Claim::cpus(1), web);
        pool.handle().set("web", wanted).expect("a good name");
        pool
    };
    conformance(make, Expect::always(4)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_keeps_its_tasks_running_whatever_ends() {
    let broker = TestBroker::builder()
        .nodes("n", 2, |node| node.tasks_run(Duration::ZERO, 0))
        .start()
        .await;
    let pool = TaskPool::new();
    let handle = pool.handle();
    let web = TaskSpec::command("web", ["serve"]);
    handle
        .set("web", Wanted::new(4, Claim::cpus(1), web.clone()))
        .expect("a good name");
    let running = broker.run_as("pool", pool);
    let count =
        |handle: &mete_sdk::PoolHandle| handle.status().first().map_or(0, |group| group.running);
    broker
        .until("four tasks to run", || count(&handle) == 4)
        .await;

    broker.lose_node("n1").await;
    broker.return_node("n1").await;
    broker
        .until("four tasks to run again", || {
            count(&handle) == 4 && broker.tasks().running() == 4
        })
        .await;

    // Another process takes the tasks over: none is started twice.
    let launched = broker.tasks().launched();
    running.crash();
    let pool = TaskPool::new();
    let handle = pool.handle();
    handle
        .set("web", Wanted::new(4, Claim::cpus(1), web))
        .expect("a good name");
    let _second = broker.run_as("pool", pool);
    broker
        .until("the second process to have them", || count(&handle) == 4)
        .await;
    broker.advance(MINUTE).await;
    assert_eq!(broker.tasks().launched(), launched);
    assert_eq!(broker.running_on_nodes().await, 4);

    handle.remove("web");
    broker
        .until("all to be stopped", || broker.tasks().live() == 0)
        .await;
}

/// A pool of four tasks that may be replaced when their node was unreachable for a minute.
fn replaced_after_a_minute() -> (mete_sdk::PoolHandle, TaskPool) {
    let pool = TaskPool::new();
    let handle = pool.handle();
    let web = TaskSpec::command("web", ["serve"]).replace_after(MINUTE);
    handle
        .set("web", Wanted::new(4, Claim::cpus(1), web))
        .expect("a good name and policy");
    (handle, pool)
}

#[tokio::test(start_paused = true)]
async fn a_pool_replaces_what_is_out_of_reach_and_keeps_both_over_its_own_restart() {
    let small = |node: mete_testing::NodeBuilder| node.cpus(2).tasks_run(Duration::ZERO, 0);
    let broker = TestBroker::builder().nodes("n", 2, small).start().await;
    let (handle, pool) = replaced_after_a_minute();
    let running = broker.run_as("pool", pool);
    let count =
        |handle: &mete_sdk::PoolHandle| handle.status().first().map_or(0, |group| group.running);
    broker
        .until("four tasks to fill both nodes", || count(&handle) == 4)
        .await;
    broker
        .add_node("n3", small(mete_testing::NodeBuilder::default()))
        .await;

    broker.lose_node("n1").await;
    broker.advance(MINUTE).await;
    assert_eq!(
        broker.tasks().launched(),
        4,
        "too early to replace anything"
    );
    broker.advance(MINUTE / 2).await;
    broker
        .until("two others to take their places", || {
            count(&handle) == 4 && broker.tasks().launched() == 6
        })
        .await;
    assert_eq!(broker.running_on_nodes().await, 4);
    assert_eq!(
        broker.tasks().live(),
        6,
        "nobody knows how the first two are"
    );

    // Another process finds both runs of a place, and ends neither.
    running.crash();
    let (handle, pool) = replaced_after_a_minute();
    let _second = broker.run_as("pool", pool);
    broker
        .until("the second process to have four", || count(&handle) == 4)
        .await;
    broker.advance(MINUTE).await;
    assert_eq!((broker.tasks().launched(), broker.tasks().live()), (6, 6));

    broker.return_node("n1").await;
    broker
        .until("the first two to be over", || broker.tasks().live() == 4)
        .await;
    broker.advance(MINUTE).await;
    assert_eq!((count(&handle), broker.tasks().launched()), (4, 6));
}

/// Declares under another name in each process, and so asks for everything again.
#[derive(Debug)]
struct Forgetful(u32);

impl Framework for Forgetful {
    async fn connected(&mut self, s: &Session, _: Connected) -> Result<()> {
        let claim = format!("greetings-{}", self.0);
        s.want(&claim, Claim::cpus(1).count(3)).await
    }

    async fn offers(&mut self, _: &Session, offers: &mut Offers) -> Result<()> {
        for claim in offers.claims() {
            while let Some(slot) = offers.take(claim.as_str()) {
                offers.launch(slot, TaskSpec::command("hello", ["echo", "hi"]));
            }
        }
        Ok(())
    }

    async fn update(&mut self, _: &Session, _: TaskUpdate) -> Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_framework_that_doubles_its_tasks_is_found_out() {
    let expect = Expect::once(3);
    let processes = std::sync::atomic::AtomicU32::new(0);
    let make = || Forgetful(processes.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    conform_to(Script::Nothing, make, expect)
        .await
        .expect("it is right while it lives");
    let why = conform_to(Script::ProcessDiesRunning, make, expect)
        .await
        .expect_err("six tasks ran");
    assert!(why.contains("6 tasks were launched where 3"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_framework_that_loses_tasks_is_found_out() {
    let expect = Expect::once(4).and_ends();
    let why = conform_to(Script::Nothing, || Hello, expect)
        .await
        .expect_err("hello runs three");
    assert!(why.contains("waited"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn the_scripts_do_what_they_say() {
    let expect = Expect::once(3).and_ends();
    let connected = async |script| {
        let log = conform_to(script, || Hello, expect).await.expect("hello");
        log.connected()
    };
    assert_eq!(connected(Script::Nothing).await, 1);
    assert!(connected(Script::Silence).await >= 2);
    assert!(connected(Script::LeaderDiesRunning).await >= 2);
    assert!(connected(Script::StreamDropsOften).await >= 3);
    assert!(connected(Script::UpdatePanics).await >= 2);
    assert!(connected(Script::Resumed).await >= 3);
    assert!(connected(Script::NewerProcess).await >= 2);
}
