"""The feeds over HTTP, for programs in any language (docs/guides/http.md).

versions   the name of a version in a header or a query                          pure
request    what a request asks for: feed, key, level, conditions                 pure
errors     errors as answers                                                     pure
bodies     the body of a request, with bounds
clients    clients of the SDK, which the requests share
guard      who asks, and whether a page of another site does
keys       PUT, GET and DELETE of a key
feeds      the list of feeds, and new ones
rows       POST of several rows
sse        server-sent events as bytes                                           pure
events     GET of a feed as events
openapi    the OpenAPI document                                                 pure
api        all routes
"""
