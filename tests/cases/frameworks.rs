//! Frameworks that hoard, are replaced, torn down, or lose their master.

use std::time::{Duration, Instant};

use mete_sdk::{Claim, Code, Error, Session, SessionConfig, TaskPhase, TaskSpec};
use serde_json::Value;

use crate::support::framework::{Raw, run, runtime};
use crate::support::{self, DEADLINE, Site, holds, until};

fn sum_cpu(items: &[Value], field: &str) -> u64 {
    items
        .iter()
        .filter_map(|item| item[field]["cpu_milli"].as_u64())
        .sum()
}

// Case 03.
#[test]
fn a_framework_that_never_answers_holds_a_quarter_at_most_and_nobody_else_waits_for_it() {
    let site = Site::dev(&[]);
    runtime().block_on(async {
        let mut hoarder = Raw::open(&site, "hoarder", "dev").await;
        let claim = Claim::cpu_milli(100).memory_mib(16).count(1_000);
        hoarder.session.want("all", claim).await.expect("declared");
        hoarder.offer("all").await;
        let total = sum_cpu(site.json(&["node", "list"]).items(), "total");
        let mut most = 0;
        let began = Instant::now();
        let mut runs = 0;
        // Past one lifetime of an offer, so that they expire and are made again.
        while began.elapsed() < Duration::from_secs(12) {
            let offers = site.json(&["offer", "list", "--framework", "hoarder"]);
            most = most.max(sum_cpu(offers.items(), "resources"));
            let answer = site.mete(&["run", "--cpus", "0.1", "--", "echo", "served"]);
            assert_eq!(answer.done(), "served");
            runs += 1;
            hoarder.listen(Duration::from_millis(50)).await;
        }
        assert!(runs >= 3, "only {runs} commands ran beside the hoarder");
        assert!(most > 0, "nothing was out to the hoarder");
        assert!(
            most <= total / 4 + 100,
            "{most} of {total} milli-CPU were out to it"
        );
        assert!(!hoarder.rescinded.is_empty(), "no offer expired");
        let nodes = site.json(&["node", "list"]);
        assert_eq!(
            sum_cpu(nodes.items(), "granted"),
            0,
            "offered is not granted: {}",
            nodes.0
        );
    });
}

// Case 51.
#[test]
fn each_kind_of_refusal_reaches_a_framework_as_itself() {
    let mut site = Site::new();
    site.start_master();
    runtime().block_on(async {
        let config = |name: &str, role: &str| {
            let mut config = SessionConfig::new(vec![site.address().to_owned()], name, role);
            config.failover_timeout = Some(Duration::from_secs(600));
            config
        };
        let over = async |config: SessionConfig| {
            let (session, _events) = Session::open(config).expect("a good configuration");
            let ready = tokio::time::timeout(DEADLINE, session.ready()).await;
            ready.expect("an answer in time").expect_err("refused")
        };
        let denied = over(config("nobody", "nope")).await;
        assert!(matches!(denied, Error::Denied(_)), "{denied:?}");

        let (first, _first_events) = Session::open(config("same", "dev")).expect("good");
        first.ready().await.expect("it stands");
        let id = first.framework_id();
        let (second, _second_events) = Session::open(config("same", "dev")).expect("good");
        second.ready().await.expect("it stands");
        assert_eq!(second.framework_id(), id, "the same framework");
        let superseded = first.want("c", Claim::cpus(1)).await.expect_err("fenced");
        assert!(matches!(superseded, Error::Superseded), "{superseded:?}");

        let wrong = second
            .want("c", Claim::new().count(1))
            .await
            .expect_err("an empty shape");
        assert!(matches!(wrong, Error::Invalid(_)), "{wrong:?}");
        let missing = second
            .want_more("none", 1)
            .await
            .expect_err("no such claim");
        assert_eq!(missing.code(), Some(Code::NotFound), "{missing:?}");

        second
            .want("c", Claim::cpus(1))
            .await
            .expect("a refusal ends nothing");
        site.mete(&["framework", "rm", "same", "--yes"]).done();
        let torn = second
            .want("d", Claim::cpus(1))
            .await
            .expect_err("ended on purpose");
        assert!(matches!(torn, Error::TornDown), "{torn:?}");
        assert!(torn.is_final() && superseded.is_final() && !wrong.is_final());

        // Nobody there: the session goes on looking, and forgets nothing.
        let mut away = config("away", "dev");
        away.masters = vec![format!("127.0.0.1:{}", support::free_port())];
        let (session, _events) = Session::open(away).expect("good");
        let waited = tokio::time::timeout(Duration::from_secs(2), session.ready()).await;
        assert!(
            waited.is_err() && session.closed().is_none(),
            "it still looks for a master"
        );
    });
}

// Case 53.
#[test]
fn a_framework_that_was_torn_down_starts_again_by_its_name_with_a_clean_state() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &[]);
    runtime().block_on(async {
        let mut raw = Raw::open(&site, "k8s", "dev").await;
        let before = raw.session.framework_id().expect("an id");
        let write = mete_sdk::store::Write::new().put(b"a".as_slice(), b"1".as_slice());
        raw.session.store().write(write).await.expect("written");
        let claim = Claim::cpu_milli(100).memory_mib(16).count(1);
        raw.session.want("c", claim).await.expect("declared");
        let offer = raw.offer("c").await;
        let one = run("t", 1);
        let spec = TaskSpec::command("t", ["sleep", "1000"]);
        assert!(raw.launch_one(&offer, &one, &spec).await.outcome.is_ok());
        raw.update(&one, "running", |update| update.phase == TaskPhase::Running)
            .await;
        raw.session.teardown().await.expect("torn down");

        let again = Raw::open(&site, "k8s", "dev").await;
        let after = again.session.framework_id().expect("an id");
        assert_ne!(after, before, "a new framework");
        assert_eq!(
            again.session.snapshot().claims,
            [],
            "no claims of the old one"
        );
        assert_eq!(again.session.snapshot().runs, [], "no runs of the old one");
        let records = again
            .session
            .store()
            .list(b"".as_slice())
            .await
            .expect("read");
        assert_eq!(records, [], "no records of the old one");
        until("the old one's task to be gone", || {
            let nodes = site.json(&["node", "list"]);
            let node = nodes.find("name", &site.node("n1"))?;
            holds(node["granted"]["cpu_milli"] == 0, || node.to_string())
        });
    });
}

// Case 55.
#[test]
fn a_session_stands_again_by_itself_after_the_master_was_killed() {
    let mut site = Site::new();
    site.start_master();
    runtime().block_on(async {
        let mut raw = Raw::open(&site, "steady", "dev").await;
        let before = (raw.session.framework_id(), raw.session.incarnation());
        raw.session
            .want("c", Claim::cpus(1).count(3))
            .await
            .expect("declared");
        for round in 1..=3 {
            site.kill("master");
            site.restart("master");
            site.wait_for_master();
            let led = Instant::now();
            raw.until("the session to stand again", |raw| {
                (raw.connected > round).then_some(())
            })
            .await;
            let took = led.elapsed();
            assert!(
                took < Duration::from_secs(10),
                "it took {took:?} after the master led"
            );
            assert_eq!(
                (raw.session.framework_id(), raw.session.incarnation()),
                before
            );
            let claim = raw.session.claim("c").expect("the claim is kept");
            assert_eq!(claim.claim.count, 3);
        }
    });
}
