//! Who gets a request: calls of the busiest service go straight to it, all others by the
//! router, which costs as much as the call itself.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context as Polling, Poll};

use quorate_proto::etcdserverpb::kv_server::KvServer;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::service::Routes;

use super::kv::KvService;

/// Everything that one port answers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Desk {
    keys: Option<KvServer<KvService>>,
    others: Routes,
}

impl Desk {
    pub(crate) fn new(keys: Option<KvServer<KvService>>, others: Routes) -> Self {
        Self { keys, others: others.prepare() }
    }
}

impl Service<Request<Body>> for Desk {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    /// Both are ready at any time: what holds a caller up is the member, not the way to it.
    fn poll_ready(&mut self, _: &mut Polling<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        match &mut self.keys {
            Some(keys) if request.uri().path().starts_with(KEYS) => {
                Answer::Keys(keys.call(request))
            }
            _ => Answer::Others(Box::pin(self.others.call(request))),
        }
    }
}

/// The way of every path of the service KV.
const KEYS: &str = "/etcdserverpb.KV/";

/// What will be answered.
pub(crate) enum Answer {
    Keys(BoxFuture<Response<Body>, Infallible>),
    Others(Pin<Box<<Routes as Service<Request<Body>>>::Future>>),
}

impl Future for Answer {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, polling: &mut Polling<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Keys(answer) => answer.as_mut().poll(polling),
            Self::Others(answer) => answer.as_mut().poll(polling),
        }
    }
}
