// Fake Dynamo worker of an unprivileged user: maps DIR/libzmq.so.5 and DIR/dynamo/_core.abi3.so; its stdout is a regular file, and later a FIFO
// (opened for reading only: whoever opens it blocks) or, with "pty", a terminal.  usage: worker_stdout DIR fifo|pty SECONDS
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <pty.h>
static void map(char*d,char*n){ char p[512]; snprintf(p,512,"%s/%s",d,n); int f=open(p,O_RDONLY); struct stat s; fstat(f,&s); mmap(0,s.st_size,PROT_READ|PROT_EXEC,MAP_PRIVATE,f,0); close(f); }
int main(int c,char**v){
  if(c<5){ char self[256]; ssize_t n=readlink("/proc/self/exe",self,255); self[n]=0; char*a[]={"python3","-m","dynamo.sglang","x",v[1],v[2],v[3],0}; execv(self,a); }
  char*D=v[4],*mode=v[5],p[512]; int secs=atoi(v[6]);
  map(D,"libzmq.so.5"); map(D,"dynamo/_core.abi3.so");
  snprintf(p,512,"%s/log",D); int f=open(p,O_RDWR|O_CREAT|O_TRUNC,0644); dup2(f,1);
  fprintf(stderr,"pid %d\n",getpid()); sleep(10);
  if(!strcmp(mode,"fifo")){ snprintf(p,512,"%s/fifo",D); mkfifo(p,0644); dup2(open(p,O_RDONLY|O_NONBLOCK),1); }
  else { int m,s; openpty(&m,&s,0,0,0); dup2(s,1); fprintf(stderr,"pty %s\n",ttyname(s)); sleep(6); fprintf(stderr,"pty: foreground session %d\n",(int)tcgetsid(m)); char x[3]={3,3,3}; write(m,x,3); sleep(2); close(m); fprintf(stderr,"hung up\n"); }
  sleep(secs); return 0; }
