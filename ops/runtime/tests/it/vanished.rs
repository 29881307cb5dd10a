//! A host of Postgres that vanishes without a word: its connections answer nothing more, and nothing says so.

use std::time::Duration;

use devtools::servers::TestDatabase;
use runtime::{Database, Role, db, plans::PreparedPool};
use secrecy::SecretString;
use sqlx::PgPool;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use url::Url;

/// Longer than a rollback is waited for.
const ROLLED_BACK: Duration = Duration::from_secs(25);

/// Stands between pools and a database.
struct Host {
    url: SecretString,
    vanished: watch::Sender<()>,
    _database: TestDatabase,
}

impl Host {
    async fn new() -> Self {
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let mut url = Url::parse(&database.url()).unwrap();
        let behind = (url.host_str().unwrap().to_owned(), url.port().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        url.set_ip_host([127, 0, 0, 1].into()).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let vanished = watch::Sender::new(());
        let vanishes = vanished.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut vanishes = vanishes.subscribe();
                let mut server = TcpStream::connect(&behind).await.unwrap();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = vanishes.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { url: url.to_string().into(), vanished, _database: database }
    }

    fn pool(&self) -> PgPool {
        Database::pool(&self.url, Role::Stages, 1).unwrap()
    }

    /// Every connection falls silent; a new one reaches the host that takes its place.
    async fn vanish(&self) {
        self.vanished.send_replace(());
        tokio::task::yield_now().await;
    }
}

async fn is_asked(db: impl sqlx::PgExecutor<'_>) -> bool {
    let asked = sqlx::query("select 1").execute(db);
    db::within(Duration::from_millis(200), asked).await.is_ok()
}

/// Lets the time of a rollback pass.
async fn wait_for_rollback() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    tokio::time::pause();
    tokio::time::advance(ROLLED_BACK).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_connection_that_answers_no_more_is_closed_and_its_place_is_free() {
    let host = Host::new().await;
    let pool = host.pool();
    let by_key = PreparedPool::new(&pool, 1);
    let (mut scan, mut kept) = (pool.acquire().await.unwrap(), by_key.take().await.unwrap());
    assert!(is_asked(&mut *scan).await && is_asked(&mut *kept).await);
    host.vanish().await;
    assert!(!is_asked(&mut *scan).await && !is_asked(&mut *kept).await);
    drop((scan, kept));
    wait_for_rollback().await;
    assert!(is_asked(&pool).await, "another connection takes its place");
    assert!(is_asked(&mut *by_key.take().await.unwrap()).await, "another connection takes its place");
}
