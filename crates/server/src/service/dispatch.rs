//! Routes a request to its service. Calls of KV, the busiest service, skip the router, which
//! costs as much as the call itself.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use quorate_proto::etcdserverpb::kv_server::KvServer;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::service::Routes;

use super::kv::KvService;
use crate::response_body::{ResponseBody, StreamedResponses};

/// Everything that is served on one port. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dispatch {
    kv: Option<KvServer<KvService>>,
    others: Routes,
}

impl Dispatch {
    pub(crate) fn new(kv: Option<KvServer<KvService>>, others: Routes) -> Self {
        Self { kv, others: others.prepare() }
    }
}

impl Service<Request<Body>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = DispatchFuture;

    /// Always ready: backpressure comes from the member, not from the router.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> DispatchFuture {
        match &mut self.kv {
            Some(kv) if request.uri().path().starts_with(KV_PATH) => {
                request.extensions_mut().insert(StreamedResponses);
                DispatchFuture::Kv(kv.call(request))
            }
            _ => {
                if request.uri().path().starts_with(LEASE_PATH) {
                    request.extensions_mut().insert(StreamedResponses);
                }
                DispatchFuture::Others(Box::pin(self.others.call(request)))
            }
        }
    }
}

/// How the path of every KV method begins.
const KV_PATH: &str = "/etcdserverpb.KV/";
/// Of leases: lists of them, or of their keys, may be long.
const LEASE_PATH: &str = "/etcdserverpb.Lease/";

/// The response to come.
pub(crate) enum DispatchFuture {
    Kv(BoxFuture<Response<Body>, Infallible>),
    Others(Pin<Box<<Routes as Service<Request<Body>>>::Future>>),
}

impl Future for DispatchFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = match self.get_mut() {
            Self::Kv(response) => ready!(response.as_mut().poll(context))?,
            Self::Others(response) => ready!(response.as_mut().poll(context))?,
        };
        if let Some(body) = response.extensions_mut().remove::<ResponseBody>() {
            *response.body_mut() = Body::new(body);
        }
        Poll::Ready(Ok(response))
    }
}
